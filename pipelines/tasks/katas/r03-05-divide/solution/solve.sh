#!/bin/sh
cat > solution.py <<'END'
def solve(x):
    return x // 5 - 9
END
touch .finished
