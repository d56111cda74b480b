#!/bin/sh
# Creates the secrets of an overlay: deploy/k8s/secrets.sh deploy/k8s/overlays/cpu-demo [HOST ...]
#
# HOST: names by which env hosts outside the cluster reach the gateway. Existing files are kept, except the tokens that
# are copied from tokens.toml: run it again after `earl tokens rotate`. Keep the secrets out of version control
# (deploy/.gitignore).
#
# With `earl` installed, or in the image: docker run --rm --user "$(id -u)" --volume "$PWD/deploy/k8s:/k8s" earl:cpu \
#     /k8s/secrets.sh /k8s/overlays/cpu-demo
set -eu
directory=$1/secrets
shift
umask 077
mkdir -p "$directory"
if [ ! -e "$directory/tokens.toml" ]; then
    earl tokens new --file "$directory/tokens.toml"
fi
for role in environment viewer; do
    earl tokens show "$role" --file "$directory/tokens.toml" > /dev/null 2>&1 ||
        earl tokens new --role "$role" --file "$directory/tokens.toml"
    all=
    [ "$role" != environment ] || all=--all # a host that listens is dialled with any of them
    earl tokens show "$role" $all --file "$directory/tokens.toml" > "$directory/.new"
    mv "$directory/.new" "$directory/${role}_token"
done
if [ ! -e "$directory/server.pem" ]; then
    set -- "$@" scheduler.earl.svc gateway.earl.svc \
        '*.rollout.earl.svc' '*.trainer.earl.svc' '*.reference.earl.svc' '*.teacher.earl.svc' '*.reward-model.earl.svc'
    for host in "$@"; do
        shift
        set -- "$@" --host "$host"
    done
    earl certs new "$directory" "$@"
fi
if [ ! -e "$directory/dashboard.pem" ]; then
    rm -f "$directory/dashboard.key" # of one that was interrupted
    earl certs add "$directory" dashboard # for localhost, where its port is forwarded to
fi
if [ ! -e "$directory/redis_password" ]; then
    head -c 32 /dev/urandom | base64 | tr -d '=+/\n' > "$directory/redis_password"
    # Without TLS: deploy/k8s/base/network-policy.yaml restricts who reaches Valkey (docs/security.md).
    printf 'redis://:%s@valkey.earl.svc:6379/0\n' "$(cat "$directory/redis_password")" > "$directory/redis_url"
fi
