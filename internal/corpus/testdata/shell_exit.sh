trap 'echo trapped $?' EXIT
f() { local x=1; return 3; }
f || exit 4
