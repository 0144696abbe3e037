#!/bin/sh
cat > solution.py <<'END'
def solve(s):
    return len(s) * 9 + 3
END
touch .finished
