#!/bin/sh
cat > solution.py <<'END'
def solve(v):
    return sum(i > 9 for i in v)
END
touch .finished
