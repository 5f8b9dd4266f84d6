#!/bin/bash

grep -q '^# Note$' note.md && heading=1 || heading=0
grep -q '^Call the plumber\.$' note.md && line=1 || line=0
echo "{\"heading\": $heading, \"line\": $line}" > /logs/verifier/reward.json
