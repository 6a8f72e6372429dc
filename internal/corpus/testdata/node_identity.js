const path = require('path');
console.log(process.argv.slice(1).map((a) => a.replace(process.cwd(), '.')), process.argv0, process.execPath, process.execArgv);
console.log(__filename === path.resolve('main.js'), __dirname === process.cwd(), require.main === module, module.id, module.parent, module.children);
console.log(Object.keys(require.cache).map((k) => path.basename(k)), module.paths[0] === process.cwd() + '/node_modules', this === module.exports);
console.log(Object.keys(globalThis), Object.getOwnPropertyNames(globalThis).length, typeof SANDBOX_SPARE, process.title, arguments.length);
console.log(Object.keys(require('module')._pathCache).map((k) => k.replaceAll(process.cwd(), '.')));
console.log(process.moduleLoadList.length, require('module').globalPaths.length);
