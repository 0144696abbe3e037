// mini-swe-agent 2.4.6 as data. It has no sub-agents and never compacts: every request is the main agent's.
local gyre = import 'gyre.libsonnet';

{
  name: 'mini-swe-agent',
  wire: 'openai_chat',
  tool_parser: 'qwen3_coder',
  install: gyre.folder(std.thisFile) + '../../.cache/harnesses',
  command: ['{install_dir}/bin/mini', '--yolo', '--exit-immediately', '--model=openai/{model}', '--task={instruction}'],
  env: {
    OPENAI_API_BASE: '{base_url}',
    OPENAI_API_KEY: '{key}',
    MSWEA_CONFIGURED: 'true',
    MSWEA_SILENT_STARTUP: '1',
    MSWEA_COST_TRACKING: 'ignore_errors',
    LITELLM_LOCAL_MODEL_COST_MAP: 'true',
  },
  deadline_s: 600,
}
