#!/usr/bin/env bash
# Debian packages that pip cannot bring: libibverbs1 (Mooncake loads it, also over TCP) and bubblewrap (the sandbox of harnesses).
set -u
missing=()
ldconfig -p 2>/dev/null | grep -q libibverbs.so.1 || missing+=(libibverbs1)
command -v bwrap >/dev/null || missing+=(bubblewrap)
[ "${#missing[@]}" -eq 0 ] && exit 0
if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
  echo "installing ${missing[*]}"
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${missing[@]}"; } >/dev/null 2>&1 && exit 0
fi
echo "please install ${missing[*]} (e.g. sudo apt-get install ${missing[*]}): weights move with the first, harnesses are isolated by the second"
exit 0
