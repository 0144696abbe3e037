// The mini harness as data: what to start, what it finds in its environment, and which request has which role.
// Change it by extending it, e.g. (import 'harness/mini.libsonnet') + { options+: ['--delegate'] }.
local gyre = import 'gyre.libsonnet';

{
  name: 'mini',
  wire: 'openai_chat',
  tool_parser: 'qwen3_coder',
  files: [gyre.folder(std.thisFile) + 'mini/mini.py'],
  options:: ['--max-calls', '8', '--max-tokens', '80', '--compact-tokens', '110'],
  command: ['{python}', '-I', '-S', '{harness_dir}/mini.py'] + self.options + ['{instruction}'],
  env: { OPENAI_BASE_URL: '{base_url}', OPENAI_API_KEY: '{key}', OPENAI_MODEL: '{model}' },
  deadline_s: 60,
  success_exit_codes: [0, 3],
  role_rules: [
    { role: 'sub-agent-summary', header_present: 'x-agent-id', last_user_startswith: 'Summarize the work so far.' },
    { role: 'sub-agent', header_present: 'x-agent-id' },
    { role: 'main-summary', last_user_startswith: 'Summarize the work so far.' },
  ],
}
