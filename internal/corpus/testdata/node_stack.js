console.log(new Error('here').stack.replaceAll(process.cwd(), '.'));
console.log(Error.stackTraceLimit);
function f(n) { return n ? f(n - 1) : new Error('deep').stack.split('\n').length; }
console.log(f(50));
let n = 0;
try { (function r() { n++; r(); })(); } catch (e) { console.log(e instanceof RangeError, e.message, n > 1000); }
/(x)/.exec('x');
console.log(RegExp.$1);
