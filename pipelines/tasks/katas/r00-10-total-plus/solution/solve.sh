#!/bin/sh
cat > solution.py <<'END'
def solve(v):
    return sum(v) + 6
END
touch .finished
