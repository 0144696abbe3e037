#!/bin/sh
cat > solution.py <<'END'
def solve(v):
    return sum(v) + 4
END
touch .finished
