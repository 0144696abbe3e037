#!/bin/sh
cat > solution.py <<'END'
def solve(s):
    return s.count('e') + 5
END
touch .finished
