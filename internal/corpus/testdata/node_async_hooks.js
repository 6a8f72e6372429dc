const { AsyncLocalStorage, executionAsyncId, triggerAsyncId } = require('async_hooks');
const s = new AsyncLocalStorage();
s.run({ a: 1 }, () => setTimeout(() => console.log(s.getStore()), 1));
console.log(executionAsyncId(), triggerAsyncId());
