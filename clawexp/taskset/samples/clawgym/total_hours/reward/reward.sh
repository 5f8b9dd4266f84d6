#!/usr/bin/env bash
# Half for the file, half for the right total in it.
set -euo pipefail
cd /root/.openclaw/workspace

if [ ! -f total.txt ]; then echo 0.0
elif [ "$(tr -d '[:space:]' < total.txt)" = 12 ]; then echo 1.0
else echo 0.5
fi
