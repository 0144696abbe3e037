// Qwen Code 0.15.10 as data. It sends no ids, so prompts tell the roles: the main agent's system prompt opens with the client's
// name, whatever else has tools is a sub-agent, and a call without tools is a summary where the client's own prompt asks for one.
local gyre = import 'gyre.libsonnet';

{
  local outer = self,
  name: 'qwen-code',
  wire: 'openai_chat',
  tool_parser: 'qwen3_coder',
  install: gyre.folder(std.thisFile) + '../../.cache/harnesses',
  command: ['{install_dir}/bin/qwen', '--auth-type', 'openai', '--yolo', '-o', 'stream-json', '--prompt={instruction}'],
  env: {
    OPENAI_BASE_URL: '{base_url}',
    OPENAI_API_KEY: '{key}',
    OPENAI_MODEL: '{model}',
    NO_COLOR: '1',
  },
  settings:: {
    telemetry: { enabled: false },
    privacy: { usageStatisticsEnabled: false },
    general: { disableAutoUpdate: true, enableAutoUpdate: false },
    memory: { enableManagedAutoMemory: false, enableManagedAutoDream: false },  // an execution has no next session
  },
  home_files: { '.qwen/settings.json': std.manifestJsonEx(outer.settings, '  ') },
  deadline_s: 600,
  default_role: 'sub-agent',
  role_rules: [
    { role: 'main-summary', no_tools: true, system_contains: 'summarizes internal chat history' },
    { role: 'side', no_tools: true },
    { role: 'side', system_startswith: 'You are now acting as the managed memory' },
    { role: 'main', system_startswith: 'You are Qwen Code' },
  ],
}
