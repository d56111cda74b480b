#!/bin/sh
# Makes what the containers of a run need to know each other, in DIRECTORY (default: secrets beside this file):
#
#   deploy/compose/secrets.sh [DIRECTORY] [HOST ...]         with `earl` installed; or in the image:
#   docker run --rm --user 0:0 --volume "$PWD/deploy/compose:/out" earl:cpu /out/secrets.sh /out/secrets
#
# tokens/tokens.toml of every role, for the services; the token of env hosts and of viewers alone, each in a directory
# of its own; a certificate authority with one certificate for all services (HOST: more names by which this machine is
# reached) and one for the dashboard alone; passwords of Valkey and of Grafana's user admin. Containers run as user and
# group 10001, which must be able to read them and nobody else may: run it as root.
#
# What is there is kept, but for the tokens that are taken from tokens.toml: run it again after `earl tokens rotate`.
set -eu
directory=${1:-$(dirname "$0")/secrets}
[ $# -gt 0 ] && shift
group=10001
if [ "$(id -u)" != 0 ]; then
    echo "secrets.sh: run it as root: the files belong to group $group of the containers" >&2
    exit 2
fi
umask 077

# shared FILE: the containers' group may read it.
shared() {
    chgrp "$group" "$1"
    chmod 0640 "$1"
}

# taken ROLE: its tokens are written beside their place and moved there, so that nobody reads half of it.
taken() {
    earl tokens show "$1" --file "$directory/tokens/tokens.toml" > /dev/null 2>&1 ||
        earl tokens new --role "$1" --file "$directory/tokens/tokens.toml"
    all=
    [ "$1" != environment ] || all=--all # a host that listens is dialled with any of them
    earl tokens show "$1" $all --file "$directory/tokens/tokens.toml" > "$directory/$1/.new"
    shared "$directory/$1/.new"
    mv "$directory/$1/.new" "$directory/$1/$1_token"
}

mkdir -p "$directory"
for name in tokens environment viewer; do
    mkdir -p "$directory/$name"
    chgrp "$group" "$directory/$name"
    chmod 0750 "$directory/$name"
done
if [ ! -e "$directory/tokens/tokens.toml" ]; then
    earl tokens new --file "$directory/tokens/tokens.toml"
fi
shared "$directory/tokens/tokens.toml"
taken environment
taken viewer
if [ ! -e "$directory/server.pem" ]; then
    set -- "$@" scheduler gateway rollout trainer reference rollout-gpu trainer-gpu reference-gpu otel-collector
    for host in "$@"; do
        shift
        set -- "$@" --host "$host"
    done
    earl certs new "$directory" "$@"
fi
if [ ! -e "$directory/dashboard.pem" ]; then
    rm -f "$directory/dashboard.key" # of one that was interrupted
    earl certs add "$directory" dashboard # for localhost
fi
# password FILE: 32 random bytes, but for the signs that a URL would not take.
password() {
    head -c 32 /dev/urandom | base64 | tr -d '=+/\n' > "$1"
}

if [ ! -e "$directory/redis_password" ]; then
    password "$directory/redis_password"
    # Without TLS: nobody but the services is on their network (docs/security.md).
    printf 'redis://:%s@valkey:6379/0\n' "$(cat "$directory/redis_password")" > "$directory/redis_url"
fi
if [ ! -e "$directory/grafana_password" ]; then
    password "$directory/grafana_password"
fi
for name in server.pem server.key dashboard.pem dashboard.key ca.pem redis_password redis_url grafana_password; do
    shared "$directory/$name"
done
