#!/bin/sh
cat > solution.py <<'END'
def solve(v):
    return sorted(v)[3:]
END
touch .finished
