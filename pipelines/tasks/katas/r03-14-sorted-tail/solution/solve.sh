#!/bin/sh
cat > solution.py <<'END'
def solve(v):
    return sorted(v)[2:]
END
touch .finished
