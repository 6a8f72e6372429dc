set -x
x=1
f() { echo "$((x + 1))" "$1"; }
f "a b"
set +x
caller; f2() { caller 0; }; f2
