#!/bin/sh
cat > solution.py <<'END'
def solve(s):
    return 'a' + s.upper()
END
touch .finished
