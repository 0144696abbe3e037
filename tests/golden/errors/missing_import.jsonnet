(import 'quikstart.jsonnet')() { name: 'mine' }
