const fs = require('fs');
const { execSync } = require('child_process');
console.log(fs.readdirSync('/proc/self/fd').map(Number).filter((n) => n < 200).sort((a, b) => a - b));
console.log(fs.openSync('/dev/null') > 2, process.umask(), process.cwd() === __dirname, require('os').getPriority());
for (const fd of [0, 1, 2]) { const s = fs.fstatSync(fd); console.log(s.mode, s.size, require('tty').isatty(fd)); }
const stat = fs.readFileSync('/proc/self/stat', 'latin1').split(' ');
console.log(Number(stat[4]) === process.pid, Number(stat[5]) === process.pid, stat[6], stat[18]);
console.log(fs.readFileSync('/proc/self/status', 'latin1').split('\n').filter((l) => /^(Name|Umask|Uid|Gid|Threads|Sig|Cap|NoNew|Seccomp)/.test(l) && !/^SigQ/.test(l)).join('\n'));
console.log(process.features, process.config.variables.napi_build_version, process.report.excludeNetwork);
console.log(process.listenerCount('exit'), process.eventNames(), process.exitCode);
