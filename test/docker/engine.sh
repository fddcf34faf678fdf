# engine.sh — starts a separate Docker engine; for sourcing.

# start_engine FOLDER: starts an engine that keeps everything in FOLDER, and directs later docker commands to it. `engine` is its process
# id; the caller ends it. The log is FOLDER/engine.log. Fails if it does not start.
start_engine() {
    export DOCKER_HOST=unix://$1/sock DOCKER_CONFIG=$1/config DOCKER_BUILDKIT=0
    dockerd --iptables=false --ip6tables=false --bridge=none --data-root "$1/data" --exec-root "$1/exec" \
        --pidfile "$1/pid" -H "$DOCKER_HOST" >"$1/engine.log" 2>&1 &
    engine=$!
    for _ in $(seq 400); do
        if docker info >/dev/null 2>&1; then return 0; fi
        kill -0 $engine 2>/dev/null || return 1
        sleep 0.3
    done
    return 1
}

# compose ARGUMENTS…: docker compose, as plugin or as program.
compose() { if docker compose version >/dev/null 2>&1; then docker compose "$@"; else docker-compose "$@"; fi; }
