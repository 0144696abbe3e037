#!/bin/sh
cat > solution.py <<'END'
def solve(v):
    return sum(v) + 5
END
touch .finished
