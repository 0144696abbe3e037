#!/bin/bash
# A third of the reward for each errand.
cd "${WORKDIR:-/app}" || exit 1
done=0
[ "$(cat sorted.txt 2>/dev/null)" = "$(LC_ALL=C sort colours.txt)" ] && done=$((done + 1))
[ "$(tr -d '[:space:]' <count.txt 2>/dev/null)" = 7 ] && done=$((done + 1))
[ "$(cat notes.txt)" = "the colours are those of a rainbow." ] && done=$((done + 1))
case $done in 3) echo 1 ;; *) echo "0.$((done * 333))" ;; esac >/logs/verifier/reward.txt
