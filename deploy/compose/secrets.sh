#!/bin/sh
# Creates the secrets of a run's containers in DIRECTORY (default: the folder secrets next to this file):
#
#   deploy/compose/secrets.sh [DIRECTORY] [HOST ...]         with `earl` installed; or in the image:
#   docker run --rm --user 0:0 --volume "$PWD/deploy/compose:/out" earl:cpu /out/secrets.sh /out/secrets
#
# tokens/tokens.toml with the tokens of every role, for the services; the tokens of env hosts and of viewers, each in a
# separate directory; a certificate authority with one certificate for all services (HOST: further names of this
# machine) and one for the dashboard only; passwords of Valkey and of Grafana's user admin. Only root and
# group 10001, in which the containers run, may read these files: run this script as root.
#
# Existing files are kept, except the tokens that are copied from tokens.toml: run it again after `earl tokens rotate`.
set -eu
directory=${1:-$(dirname "$0")/secrets}
[ $# -gt 0 ] && shift
group=10001
if [ "$(id -u)" != 0 ]; then
    echo "secrets.sh: run it as root: the files belong to group $group of the containers" >&2
    exit 2
fi
umask 077

# shared FILE: lets the containers' group read FILE.
shared() {
    chgrp "$group" "$1"
    chmod 0640 "$1"
}

# taken ROLE: copies the role's tokens to a temporary file and renames it, so that no reader gets a partial file.
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
    set -- "$@" scheduler gateway rollout trainer reference teacher reward-model rollout-gpu trainer-gpu reference-gpu \
        teacher-gpu reward-model-gpu otel-collector
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
# password FILE: writes 32 random bytes in base64, without characters that a URL does not allow.
password() {
    head -c 32 /dev/urandom | base64 | tr -d '=+/\n' > "$1"
}

if [ ! -e "$directory/redis_password" ]; then
    password "$directory/redis_password"
    # Without TLS, because only the services are on their network (docs/security.md).
    printf 'redis://:%s@valkey:6379/0\n' "$(cat "$directory/redis_password")" > "$directory/redis_url"
fi
if [ ! -e "$directory/grafana_password" ]; then
    password "$directory/grafana_password"
fi
for name in server.pem server.key dashboard.pem dashboard.key ca.pem redis_password redis_url grafana_password; do
    shared "$directory/$name"
done
