const fs = require('fs');
fs.writeFileSync('helper.js', 'exports.v = 1; exports.parent = module.parent.filename; exports.main = require.main === module;');
fs.writeFileSync('data.json', '{"a": [1]}');
fs.writeFileSync('m.mjs', 'export const z = await Promise.resolve(3); export default import.meta.url;');
fs.mkdirSync('node_modules/pkg', { recursive: true });
fs.writeFileSync('node_modules/pkg/index.js', 'module.exports = __filename');
const h = require('./helper');
console.log(h.v, h.parent === __filename, h.main, require('./data'), require('pkg') === __dirname + '/node_modules/pkg/index.js');
console.log(module.children.length, require.resolve('./helper') === __dirname + '/helper.js', require.resolve.paths('x')[0] === __dirname + '/node_modules');
import('./m.mjs').then((m) => { console.log(m.z, m.default.endsWith('/m.mjs')); return import('fs'); }).then((m) => console.log(typeof m.readFileSync));
try { require('./missing'); } catch (e) { console.log(e.code, e.message.split('\n')[0]); }
