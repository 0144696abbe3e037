#!/bin/sh
cat > solution.py <<'END'
def solve(x):
    return (x - 6) * 9
END
touch .finished
