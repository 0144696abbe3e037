#!/bin/sh
cat > solution.py <<'END'
def solve(s):
    return len(s) * 6 + 9
END
touch .finished
