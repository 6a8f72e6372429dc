process.on('uncaughtException', (e, origin) => { console.log('caught', e.message, origin); });
setTimeout(() => console.log('goes on'), 5);
throw new Error('x');
