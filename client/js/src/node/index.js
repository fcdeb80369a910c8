// The entry for Node and Bun: everything of the general one, a WebSocket for Node, and connect({}) starts a server.
import { useSpawn } from '../connect.js';
import { usePlatformSocket } from '../transport/transport.js';

// Bun has a WebSocket, and no upgrades in node:http. The modules are loaded only when they are needed.
if (!process.versions.bun) usePlatformSocket(async request => (await import('./websocket.js')).openNodeSocket(request));
useSpawn(async options => (await import('./spawn.js')).spawnServer(options));

export * from '../index.js';
