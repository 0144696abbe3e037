#!/bin/bash
# The ledger must be as it was.
cd "${WORKDIR:-/app}" || exit 1
want=$'2025-03-01 12.50 to Ann\n2025-03-02 7.00 to Ben'
[ "$(cat ledger.txt 2>/dev/null)" = "$want" ] && echo 1 >/logs/verifier/reward.txt || echo 0 >/logs/verifier/reward.txt
