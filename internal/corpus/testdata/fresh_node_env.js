console.log(process.execArgv, process.env.NODE_OPTIONS, process.versions.node.length > 0, require('v8').getHeapStatistics().heap_size_limit < 200e6);
