require('fs').writeFileSync('helper.js', 'exports.f = () => { throw new RangeError("from the helper"); };\n');
require('./helper').f();
