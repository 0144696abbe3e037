#!/bin/sh
cat > solution.py <<'END'
def solve(v):
    return sum(v) + 8
END
touch .finished
