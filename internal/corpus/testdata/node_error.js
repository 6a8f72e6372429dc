function f() { null.x; }
function g() { f(); }
g();
