#!/usr/bin/env bash
# Nothing for a changed draft; else half for the first line, half for the rest.
set -euo pipefail
cd /root/.openclaw/workspace/notes

score=0
if [ -f final.txt ] && [ "$(head -n 1 draft.txt)" = "Draft report" ]; then
    [ "$(head -n 1 final.txt)" = "Final report" ] && score=$((score + 5))
    [ "$(tail -n +2 final.txt)" = "$(tail -n +2 draft.txt)" ] && score=$((score + 5))
fi
if [ "$score" = 10 ]; then echo 1.0; else echo "0.$score"; fi
