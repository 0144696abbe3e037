// Every cell in training, none left for rollouts.
(import '../../../pipelines/quickstart.jsonnet')() {
  ops+: { elastic+: { args+: { policy: 'async', train_cells: 3 } } },
}
