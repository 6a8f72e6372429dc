const fs = require('fs');
fs.writeFileSync('a', 'x');
const s = fs.createWriteStream('b');
s.write('y');
process.on('exit', () => console.log(fs.readFileSync(__dirname + '/a', 'utf8'), fs.existsSync(__dirname + '/b')));
fs.watchFile(__dirname + '/a', { interval: 10 }, () => {}).unref();
s.end(() => {
  process.chdir('/');
  console.log(process.cwd(), __dirname !== '/');
  fs.promises.readFile(__dirname + '/a', 'utf8').then((t) => console.log('read', t));
});
