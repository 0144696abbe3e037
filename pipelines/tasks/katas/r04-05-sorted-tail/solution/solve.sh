#!/bin/sh
cat > solution.py <<'END'
def solve(v):
    return sorted(v)[4:]
END
touch .finished
