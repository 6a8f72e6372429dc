require('fs').writeFileSync('package.json', '{"type": "module"}');
console.log(require('child_process').spawnSync(process.execPath, ['main.js', 'again'], { encoding: 'utf8' }).status);
