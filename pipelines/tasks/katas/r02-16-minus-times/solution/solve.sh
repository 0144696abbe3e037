#!/bin/sh
cat > solution.py <<'END'
def solve(x):
    return (x - 7) * 4
END
touch .finished
