console.log('before');
process.kill(process.pid, 'SIGINT');
setTimeout(() => console.log('never'), 1000);
