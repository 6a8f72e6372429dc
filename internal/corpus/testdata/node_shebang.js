#!/usr/bin/env node
console.log('runs', __filename.endsWith('main.js'));
