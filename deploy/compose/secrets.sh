#!/bin/sh
# Makes what the containers of a run need to know each other, in DIRECTORY (default: secrets beside this file):
#
#   deploy/compose/secrets.sh [DIRECTORY] [HOST ...]         with `earl` installed; or in the image:
#   docker run --rm --user 0:0 --volume "$PWD/deploy/compose:/out" earl:cpu /out/secrets.sh /out/secrets
#
# tokens.toml of every role, the tokens of env hosts and of operators alone, a certificate authority with one certificate for all
# services (HOST: more names by which this machine is reached), Valkey's password. Containers run as user and
# group 10001, which must be able to read them and nobody else may: run it as root. What is there is kept.
set -eu
directory=${1:-$(dirname "$0")/secrets}
[ $# -gt 0 ] && shift
group=10001
if [ "$(id -u)" != 0 ]; then
    echo "secrets.sh: run it as root: the files belong to group $group of the containers" >&2
    exit 2
fi
umask 077
mkdir -p "$directory"
if [ ! -e "$directory/tokens.toml" ]; then
    earl tokens new --file "$directory/tokens.toml"
    for role in environment operator; do
        earl tokens show "$role" --file "$directory/tokens.toml" > "$directory/${role}_token"
    done
fi
if [ ! -e "$directory/server.pem" ]; then
    set -- "$@" scheduler gateway rollout trainer rollout-gpu trainer-gpu otel-collector
    for host in "$@"; do
        shift
        set -- "$@" --host "$host"
    done
    earl certs new "$directory" "$@"
fi
if [ ! -e "$directory/redis_password" ]; then
    head -c 32 /dev/urandom | base64 | tr -d '=+/\n' > "$directory/redis_password"
    printf 'redis://:%s@valkey:6379/0\n' "$(cat "$directory/redis_password")" > "$directory/redis_url"
fi
cd "$directory"
chgrp "$group" tokens.toml environment_token operator_token server.pem server.key ca.pem redis_password redis_url
chmod 0640 tokens.toml environment_token operator_token server.pem server.key ca.pem redis_password redis_url
