// Codex 0.171.0 as data. Its headers tell the roles: the turn's metadata names a compaction, a parent thread or the sub-agent header
// a sub-agent.
local gyre = import 'gyre.libsonnet';
local summary = { header: { 'x-codex-turn-metadata': '"request_kind":"compaction"' } };
local helper = { header_present: ['x-codex-parent-thread-id', 'x-openai-subagent'] };

{
  local outer = self,
  name: 'codex',
  wire: 'openai_responses',
  tool_parser: 'qwen3_coder',
  install: gyre.folder(std.thisFile) + '../../.cache/harnesses',
  command: ['{install_dir}/bin/codex', 'exec', '--skip-git-repo-check', '--json', '-'],
  stdin: '{instruction}',
  env: { CODEX_HOME: '{home}/.codex', GYRE_KEY: '{key}' },
  settings:: {
    model: '{model}',
    model_provider: 'gyre',
    approval_policy: 'never',
    sandbox_mode: 'danger-full-access',
    check_for_update_on_startup: false,
    model_providers: { gyre: { name: 'gyre', base_url: '{base_url}', env_key: 'GYRE_KEY', wire_api: 'responses' } },
    analytics: { enabled: false },
    features: { plugins: false },
  },
  home_files: { '.codex/config.toml': std.manifestTomlEx(outer.settings, '') },
  deadline_s: 600,
  role_rules: [
    { role: 'sub-agent-summary' } + summary + helper,
    { role: 'main-summary' } + summary,
    { role: 'sub-agent' } + helper,
  ],
}
