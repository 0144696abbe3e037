#!/bin/sh
cat > solution.py <<'END'
def solve(s):
    return 'u' + s.upper()
END
touch .finished
