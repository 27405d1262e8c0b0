#!/usr/bin/env bash
# 'bigfs run', again where that helps (deploy/README.md, "When it fails"), at most five times. For
# what has no such rule of its own: cron, and the workflows beside this file.
#
#     deploy/again.sh my.yaml [options of bigfs run]
set -uo pipefail

MOST_RESTARTS=5

ended=no
trap 'ended=yes; kill -TERM "$run" 2>/dev/null' TERM INT
for ((restarts = 0; ; restarts++)); do
    bigfs run "$@" &
    run=$!
    wait "$run" # a signal ends it early
    while kill -0 "$run" 2>/dev/null; do
        wait "$run"
    done
    wait "$run"
    code=$?
    [[ $code == 4 || $code == 75 || $code == 130 ]] || break
    [[ $ended == no && $restarts -lt $MOST_RESTARTS ]] || break
    sleep "${BIGFS_PAUSE:-90}" &
    wait $!
    [[ $ended == no ]] || break
done
exit "$code"
