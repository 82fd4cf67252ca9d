#!/bin/sh
# Show a new user's first commands in tmux, with an empty LOCALSPEC_HOME, and write the screens to
# docs/panes-80x24.txt and docs/panes-120x40.txt. Use an idle machine: sh tools/panes.sh
set -eu
PATH=$(realpath .venv/bin):$PATH LOCALSPEC_HOME=$(mktemp -d)
export PATH LOCALSPEC_HOME
panes() { tmux -u -L "panes$$" "$@"; }
trap 'panes kill-server 2>/dev/null || true; rm -rf "$LOCALSPEC_HOME"' EXIT

# COMMAND UNTIL [TEXT]: type TEXT, and print the screen once it has a line that matches UNTIL.
screen() {
    export COMMAND="$1"
    panes new-session -d -x "$width" -y "$height" \
        "sh -c 'echo \"\$ \$COMMAND\"; eval \"\$COMMAND\"; printf \"\$ \"; sleep 1000'"
    [ -z "${3-}" ] || { sleep 5; panes send-keys -l "$3"; panes send-keys Enter; }
    until panes capture-pane -p | grep -q "$2"; do sleep 1; done
    sleep 2
    panes capture-pane -p | sed -e :a -e '/^\n*$/{$d;N;ba' -e '}'
    panes kill-server
    printf -- '-%.0s' $(seq "$width"); echo
    sleep 1
}

for size in 80x24 120x40; do
    width=${size%x*} height=${size#*x}
    rm -rf "$LOCALSPEC_HOME"/*
    {
        screen 'localspec run --temp 0 -n 60 "Why is the sky blue?"' '^\$$'
        screen 'localspec list' '^\$$'
        screen 'localspec doctor --quick' '^\$$'
        screen 'localspec run -m qwen3-8b "Hello"' '^\$$'
        screen 'localspec chat --temp 0' '■' 'Why is the sky blue?'
    } > "docs/panes-$size.txt"
done
