#!/bin/sh
cat > solution.py <<'END'
def solve(v):
    return sum(i > 5 for i in v)
END
touch .finished
