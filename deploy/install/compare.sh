#!/bin/bash
# Replays the newest recordings with two releases: do they decide the same, bit for bit? Changes nothing.
set -euo pipefail

usage() {
    cat <<'END'
compare.sh OLD NEW FOLDER    OLD and NEW: the program `pkm` of two releases; FOLDER: of recordings

The first minutes of the newest three finished recordings that OLD can replay are taken.
Exit codes: 0 no difference, or nothing to compare; 1 they differ; 2 cannot be done like this.
END
}

readonly most=3 seconds=300

[[ ${1:-} == -h || ${1:-} == --help ]] && usage && exit 0
test $# = 3 && test -x "$1" && test -x "$2" || { usage >&2 && exit 2; }
readonly old=$1 new=$2 folder=$3

replayed() { # program, recording
    "$1" replay --columns --to $seconds "$folder/$2.mcap" 2>&1
}

differ='' compared=0
recordings=$("$new" runs list "$folder" 2>/dev/null | awk '$8 == "finished" { print $1 }') || true
for recording in $recordings; do
    test $compared -lt $most || break
    was=$(replayed "$old" "$recording") && code=0 || code=$?
    if test $code -gt 1; then
        echo "$recording: left out, the old release cannot replay it: ${was##*$'\n'}"
        continue
    fi
    compared=$((compared + 1))
    now=$(replayed "$new" "$recording") && code=0 || code=$?
    if test $code -gt 1; then
        differ=yes
        echo "$recording: the new release cannot replay it: ${now##*$'\n'}"
    elif test "$was" = "$now"; then
        echo "$recording: no difference, ${now%%,*}"
    else
        differ=yes
        printf '%s: they differ\n' "$recording"
        printf '  old: %s\n' "${was//$'\n'/$'\n       '}"
        printf '  new: %s\n' "${now//$'\n'/$'\n       '}"
    fi
done
if test $compared = 0; then echo "There is no recording to compare the releases with."; fi
test -z "$differ"
